-- migrate:up
-- What made the list, packed (services/materialiser/inputs.py): for a few days the list can be made again from it.
-- Lists made before this column have none.
ALTER TABLE daily_list ADD COLUMN inputs bytea;
-- It is compressed already.
ALTER TABLE daily_list ALTER COLUMN inputs SET STORAGE EXTERNAL;
-- By these two, what is old is found without reading what is not.
CREATE INDEX daily_list_by_date ON daily_list (playlist_date);
CREATE INDEX daily_list_inputs ON daily_list (playlist_date) WHERE inputs IS NOT NULL;

-- migrate:down
DROP INDEX daily_list_inputs;
DROP INDEX daily_list_by_date;
ALTER TABLE daily_list DROP COLUMN inputs;
