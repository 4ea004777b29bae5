"""Kafka, its topics, and those who write to it."""

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from changelog.topics import admin, delete_topics
from tests.faults.catalogue import fault
from tests.faults.report import kill
from tests.faults.scene import OURS, Scene
from tests.services import until


@fault("kafka.killed-under-load", seconds=900)
def kafka_killed_under_load(scene: Scene) -> None:
    """The broker is killed five times while records come; the writer goes on by itself, and so does everybody."""
    with scene.load(rate=100):
        for _ in range(5):
            scene.kill("kafka")
            scene.somewhen(8)
    scene.check()


@fault("writer.killed", quick=True)
def writer_killed(scene: Scene) -> None:
    """Writers are killed in the middle of their work, six times: what they had no answer for is there, or not,
    everywhere alike."""
    for _ in range(6):
        with scene.load(rate=1500) as load:
            scene.pause(0.3)
            scene.somewhen(0.7)
            kill(load.process.pid)
            load.process.communicate()
    unknown = scene.checker.look().journal.unknown().total()
    scene.report.told(f"{unknown} records without an answer")
    scene.check()


@fault("topic.unrelated")
def topic_unrelated(scene: Scene) -> None:
    """A new topic appears under the log's prefix, and another elsewhere, with records that are none: nobody minds."""
    names = ("changelog.unrelated", "unrelated")
    pids = {name: scene.pid(name) for name in OURS}
    with scene.load(rate=100):
        client = admin(scene.settings)
        for future in client.create_topics([NewTopic(name, 3, 1) for name in names]).values():
            future.result(30)
        producer = Producer({**scene.settings.kafka.client()})
        for name in names:
            for number in range(500):
                producer.produce(name, key=str(number), value=b"\xff not a record")
        producer.flush(30)
    scene.report.acted()
    scene.batch()
    scene.check()
    delete_topics(scene.settings, names)
    scene.feed(100)
    scene.check()
    assert {name: scene.pid(name) for name in OURS} == pids, "a service was started again"


@fault("services.killed-at-random", seconds=900)
def services_killed_at_random(scene: Scene) -> None:
    """Archiver, derive, commands and speed driver are killed sixty times in random order while records come."""
    with scene.load(rate=30):
        for _ in range(60):
            name = scene.random.choice(OURS)
            until(lambda: scene.pid(name) is not None, 60, f"{name} runs")  # noqa: B023
            kill(scene.pid(name))
            scene.somewhen(2)
    scene.check()
