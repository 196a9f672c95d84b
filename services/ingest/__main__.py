from services.ingest.app import main

main()
