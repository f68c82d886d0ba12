"""The log pipeline counts templates exactly as the truth says: a generated one, and Loghub's where it is at hand.

Loghub's samples (arXiv 2008.06448) may be used but not copied into the project. They are looked for in the folder that
MOLDAU_LOGHUB names, else in `../shared/data/logs` beside the repository.
"""

import csv
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from moldau.spark import session
from moldau.spark.pipelines import loads, start
from tests.interop.peers.workshop import REPOSITORY
from tests.support.broker_process import BrokerProcess

LINES = {
    "Apache": "[<time>] [<level>] <content>",
    "HDFS": "<date> <time> <pid> <level> <component>: <content>",
    "OpenSSH": "<date> <day> <time> <component> sshd[<pid>]: <content>",
    "Generated": "<at> <host> <level> <component>: <content>",
}


@dataclass(slots=True, frozen=True)
class Corpus:
    name: str
    lines: list[str]
    templates: Counter[str]


def generated() -> Corpus:
    rng = random.Random(5)
    templates = ["user <*> in", "user <*> in from <*>", "<*> served to <*>", "queue <*> full", "bye"]
    chosen = rng.choices(templates, (5, 4, 3, 2, 1), k=2000)
    lines = []
    for template in chosen:
        message = template
        while "<*>" in message:
            message = message.replace("<*>", str(rng.randrange(10**6)), 1)
        lines.append(f"12:00 h{rng.randrange(3)} INFO main: {message}")
    return Corpus("Generated", lines, Counter(chosen))


def corpora() -> Iterator[Corpus]:
    yield generated()
    folder = Path(os.environ.get("MOLDAU_LOGHUB", REPOSITORY.parent / "shared" / "data" / "logs"))
    for file in sorted(folder.glob("*.structured.csv")):
        name = file.name.split(".")[0]
        with file.open(newline="", encoding="utf-8") as labelled:
            templates = Counter(row["EventTemplate"] for row in csv.DictReader(labelled))
        yield Corpus(name, (folder / f"{name}.log").read_text(encoding="utf-8").splitlines(), templates)


@pytest.mark.parametrize("corpus", list(corpora()), ids=lambda corpus: corpus.name)
def test_template_counts_are_exactly_the_truths(corpus: Corpus, moldau: BrokerProcess, tmp_path: Path) -> None:
    topic = f"log-lines-{corpus.name}"
    producer = Producer({"bootstrap.servers": moldau.bootstrap_servers, "log_level": 2})
    for line in corpus.lines:
        producer.produce(topic, line.encode())
    assert producer.flush(30) == 0
    (tmp_path / "templates.txt").write_text("".join(f"{each}\n" for each in corpus.templates))
    pipeline = loads(
        f"""
name: loghub
checkpoint: checkpoint
kafka: {{bootstrap.servers: "{moldau.bootstrap_servers}"}}
sources:
  lines:
    topic: {topic}
    parse: {{format: log, line: "{LINES[corpus.name]}", templates_file: templates.txt, on_error: fail}}
steps:
  - {{name: counts, group_by: template, aggregate: {{lines: count(*)}}}}
sinks:
  - {{memory: template_counts, mode: complete}}
""",
        "loghub.yaml",
        folder=str(tmp_path),
    )
    spark = session("moldau-interop", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    with start(pipeline, spark, once=True) as running:
        assert running.wait(300)
        found = Counter(
            {row.template: row.lines for row in running.spark.sql("SELECT * FROM template_counts").collect()}
        )
    assert found == corpus.templates
    assert found.total() == len(corpus.lines)
