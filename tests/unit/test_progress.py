"""What is told of a partition is what the loop marked."""

from shared.kafka.log import TopicPartition
from shared.kafka.progress import Progress


def test_the_three_marks_and_the_silence_of_each_partition_are_told() -> None:
    clock = iter([100.0, 104.0, 109.5])
    progress = Progress(now=lambda: next(clock))
    partition = TopicPartition("playback.plays.v1", 3)
    progress.began(partition, 7)
    progress.fetched(partition, 12)
    progress.applied(partition, 10)
    assert progress.facts() == {
        "playback.plays.v1-3": {"fetched": 12, "applied": 10, "stored": 7, "end": None, "silent_s": 5.5}
    }
