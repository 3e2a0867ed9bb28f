"""Kafka's own command-line tools against us: the same words, exit codes and files as against Kafka."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_twin.batches import TIME_MS, batch, numbered
from tests.support.broker_twin.ours import SETTINGS
from tests.support.broker_twin.pair import BOTH, Pair, Which
from tests.support.broker_twin.scenes.quotas import quotas_in
from tests.support.broker_twin.side import DESCRIBE_CLIENT_QUOTAS, Side
from tests.support.kafka.toolbox import run_tool
from tests.support.kafka.tools import find_faults

pytestmark = pytest.mark.kafka

OUR_SETTINGS = re.compile(
    r"^\s*(compactionThreshold|max\.decompressed|siltstone\.|topicCompaction).*\n", re.M
)
"""Lines of settings that Kafka does not have."""
Run = Callable[..., str]


def both_say(pair: Pair, script: Callable[[Run], object], *, in_any_order: bool = False) -> str:
    """Run a script of tools against both brokers; their output must be the same, and is returned.

    ``in_any_order``: the lines of each tool, where Kafka's order is that of a hash table.
    """
    transcripts = {}
    for which in BOTH:
        lines: list[str] = []

        def run(
            tool: str,
            *arguments: str,
            stdin: bytes = b"",
            fails: bool = False,
            which: Which = which,
            lines: list[str] = lines,
        ) -> str:
            words = [argument.replace("BOOTSTRAP", pair.bootstrap[which]) for argument in arguments]
            if words == list(arguments):
                words += ["--bootstrap-server", pair.bootstrap[which]]
            ran = run_tool(tool, *words, stdin=stdin)
            assert (ran.code != 0) == fails, f"{which}: {tool} {arguments}: {ran.code}\n{ran.out}\n{ran.err}"
            text = normal(pair, which, ran.out + ran.err)
            if in_any_order:
                text = "\n".join(sorted(text.splitlines()))
            lines.append(f"$ {tool} {' '.join(arguments)}\n{text}")
            if tool == "kafka-topics" and not fails:
                wait_for_change(pair.bootstrap[which], arguments)
            return text

        script(run)
        transcripts[which] = "\n".join(lines)
    assert transcripts["ours"] == transcripts["kafka"]
    return transcripts["ours"]


def normal(pair: Pair, which: Which, text: str) -> str:
    """A tool's words without addresses, paths, ids, times, figures, texts of errors, settings of ours."""
    text = OUR_SETTINGS.sub("", text)
    text = text.replace(pair.bootstrap[which], "BOOTSTRAP").replace(str(pair.log_dir[which]), "LOGS")
    text = re.sub(r"TopicId: [\w-]{22}", "TopicId: ID", text)
    text = re.sub(r'"timestamp":\d+', '"timestamp":0', text)
    text = re.sub(r"\d+\.\d+ (records/sec|MB/sec|ms)", r"N \1", text)
    text = re.sub(r"\d+ ms (\d)", r"N ms \1", text)
    text = re.sub(r'"avg_throughput":[\d.]+', '"avg_throughput":N', text)
    text = re.sub(r"(Error while executing \w+ command : |(?:Exception|Error): ).*", r"\1TEXT", text)
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(("\tat ", "\t... ")))
    return "\n".join(lines)


def wait_for_change(bootstrap: str, arguments: tuple[str, ...]) -> None:
    """Wait until a broker serves the topic that kafka-topics has created, or no longer the deleted one."""
    named = dict(itertools.pairwise(arguments))
    side = Side(bootstrap)
    if "--create" in arguments or "--partitions" in arguments:
        side.settle(named["--topic"], int(named.get("--partitions", SETTINGS["num.partitions"])))
    elif "--delete" in arguments:
        side.wait_for_deletion(named["--topic"])
    side.close()


def test_kafka_topics(pair: Pair) -> None:
    def script(run: Run) -> None:
        run(
            "kafka-topics",
            "--create",
            "--topic",
            "topics-a",
            "--partitions",
            "3",
            "--replication-factor",
            "1",
        )
        run("kafka-topics", "--create", "--topic", "topics.b", "--config", "cleanup.policy=compact")
        run("kafka-topics", "--create", "--topic", "topics-a", fails=True)
        run("kafka-topics", "--create", "--if-not-exists", "--topic", "topics-a")
        run("kafka-topics", "--create", "--topic", "topics-c", "--replication-factor", "3", fails=True)
        run("kafka-topics", "--create", "--topic", "topics-c", "--config", "no.such=1", fails=True)
        run("kafka-topics", "--create", "--topic", "topics/c", fails=True)
        for topic, count in (("topics-a", 3), ("topics.b", 2)):
            run(
                "kafka-topics",
                "--describe",
                "--topic",
                topic,
                "--partition-size-limit-per-response",
                str(count),
            )
        run("kafka-topics", "--describe", "--topic", "topics-none", fails=True)
        run("kafka-topics", "--describe", "--topic", "topics.*", "--topics-with-overrides")
        run("kafka-topics", "--describe", "--topic", "topics-a", "--under-replicated-partitions")
        listed = run("kafka-topics", "--list", "--topic", "topics[-.].*")
        assert listed.split() == ["topics-a", "topics.b"]
        run("kafka-topics", "--alter", "--topic", "topics-a", "--partitions", "5")
        run("kafka-topics", "--alter", "--topic", "topics-a", "--partitions", "2", fails=True)
        run("kafka-topics", "--delete", "--topic", "topics.b")
        run("kafka-topics", "--delete", "--topic", "topics-none", fails=True)

        run("kafka-topics", "--describe", "--topic", "topics-a")

    assert "PartitionCount: 5" in both_say(pair, script)


def test_kafka_configs(pair: Pair) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", "configured")
    of_broker = ("--entity-type", "brokers", "--entity-name", "1")

    def change(run: Run) -> None:
        run(
            "kafka-configs",
            *of_topic,
            "--alter",
            "--add-config",
            "retention.ms=99000,cleanup.policy=[compact,delete]",
        )
        run("kafka-configs", *of_topic, "--alter", "--add-config", "no.such=1", fails=True)
        run("kafka-configs", *of_topic, "--alter", "--delete-config", "segment.ms")
        run("kafka-configs", "--entity-type", "topics", "--entity-name", "nothing", "--describe")
        run("kafka-configs", *of_broker, "--alter", "--add-config", "log.index.interval.bytes=8192")
        run("kafka-configs", *of_broker, "--alter", "--add-config", "log.dirs=/elsewhere", fails=True)

    def look(run: Run) -> None:
        run("kafka-configs", *of_topic, "--describe")
        run("kafka-configs", *of_topic, "--describe", "--all")
        run("kafka-configs", *of_broker, "--describe")
        run("kafka-configs", *of_broker, "--alter", "--delete-config", "log.index.interval.bytes")

    for which in BOTH:
        side = Side(pair.bootstrap[which])
        side.create("configured")
        side.close()
    both_say(pair, change)
    wait_for_settings(pair)
    text = both_say(pair, look)
    assert "retention.ms=99000" in text and "log.index.interval.bytes=8192" in text


def test_kafka_configs_of_quotas(pair: Pair) -> None:
    users, clients, ips = (("--entity-type", kind) for kind in ("users", "clients", "ips"))
    ada, default = ("--entity-name", "ada"), ("--entity-default",)
    report = (*clients, "--entity-name", "report")
    address = (*ips, "--entity-name", "192.0.2.1")

    def change(run: Run) -> None:
        for entity, quotas in (
            ((*users, *ada), "producer_byte_rate=1048576,request_percentage=12.5"),
            (report, "consumer_byte_rate=2048,controller_mutation_rate=0.5"),
            ((*users, *ada, *report), "producer_byte_rate=99000000"),
            ((*users, *ada, *clients, *default), "producer_byte_rate=98000000"),
            ((*users, *default), "consumer_byte_rate=20000000000"),
            ((*clients, *default), "consumer_byte_rate=10000000000"),
            (address, "connection_creation_rate=7"),
            ((*ips, *default), "connection_creation_rate=700000"),
        ):
            run("kafka-configs", *entity, "--alter", "--add-config", quotas)
        for bad in ("producer_byte_rate=-1", "producer_byte_rate=x", "no.such=1"):
            run("kafka-configs", *users, *ada, "--alter", "--add-config", bad, fails=True)
        run("kafka-configs", *users, "--alter", "--add-config", "producer_byte_rate=1", fails=True)

    def look(run: Run) -> None:
        for entity in (
            users,
            clients,
            ips,
            (*users, *clients),
            (*users, *ada),
            (*users, *ada, *clients),
            (*users, *ada, *report),
            (*users, *ada, *clients, *default),
            (*users, *default),
            report,
            address,
            (*ips, *default),
            (*users, "--entity-name", "nobody"),
        ):
            run("kafka-configs", *entity, "--describe")

    def remove(run: Run) -> None:
        run("kafka-configs", *users, *ada, "--alter", "--delete-config", "producer_byte_rate")
        for entity, quotas in (
            ((*users, *ada), "request_percentage"),
            (report, "consumer_byte_rate,controller_mutation_rate"),
            ((*users, *ada, *report), "producer_byte_rate"),
            ((*users, *ada, *clients, *default), "producer_byte_rate"),
            ((*users, *default), "consumer_byte_rate"),
            ((*clients, *default), "consumer_byte_rate"),
            (address, "connection_creation_rate"),
            ((*ips, *default), "connection_creation_rate"),
        ):
            run("kafka-configs", *entity, "--alter", "--delete-config", quotas)

    both_say(pair, change)
    wait_for_quotas(pair, 8)
    text = both_say(pair, look, in_any_order=True)
    assert "user-principal 'ada', the default client-id are producer_byte_rate=9.8E7" in text
    both_say(pair, remove)
    wait_for_quotas(pair, 0)


def wait_for_quotas(pair: Pair, count: int) -> None:
    """Wait until so many entities have quotas."""
    for which in BOTH:
        side = Side(pair.bootstrap[which])

        def has_arrived(side: Side = side) -> bool:
            answer = side.quietly(DESCRIBE_CLIENT_QUOTAS, 1, components=[])
            return len(quotas_in(answer)) == count

        side.until(has_arrived, f"{count} quotas")
        side.close()


def wait_for_settings(pair: Pair) -> None:
    """Wait until the last change of the broker's settings has arrived."""
    for which in BOTH:
        side = Side(pair.bootstrap[which])
        resource = {
            "resource_type": 4,
            "resource_name": "1",
            "configuration_keys": ["log.index.interval.bytes"],
        }

        def has_arrived(side: Side = side, resource: dict[str, object] = resource) -> bool:
            answer = side.quietly(32, 4, resources=[resource])
            return bool(answer["results"][0]["configs"][0]["value"] == "8192")

        side.until(has_arrived, "a broker's setting")
        side.close()


def test_console_and_offsets(pair: Pair) -> None:
    sent = b"a\t1\nb\t2\na\t\nc\twith tab\tbehind\nd\t\xc3\xbc\n"
    shown = ("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true")

    def script(run: Run) -> None:
        run("kafka-topics", "--create", "--topic", "console", "--partitions", "2")
        keyed = ("--topic", "console", "--reader-property", "parse.key=true")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            run("kafka-console-producer", *keyed, "--compression-codec", codec, stdin=sent)
        run("kafka-topics", "--create", "--topic", "console-plain", "--partitions", "1")
        run("kafka-console-producer", "--topic", "console-plain", "--sync", stdin=b"no key\n")
        run("kafka-get-offsets", "--topic", "console")
        run("kafka-get-offsets", "--topic", "console", "--time", "earliest", "--partitions", "1")
        run("kafka-get-offsets", "--topic-partitions", "console:0,console:7")
        first = ("--topic", "console", "--partition", "0")
        run("kafka-console-consumer", *first, "--from-beginning", "--max-messages", "20", *shown)
        run("kafka-console-consumer", *first, "--offset", "3", "--max-messages", "2", *shown)
        isolated = ("--isolation-level", "read_committed", "--max-messages", "5")
        run(
            "kafka-console-consumer",
            "--topic",
            "console",
            "--partition",
            "1",
            "--offset",
            "earliest",
            *isolated,
        )
        keyless = ("--topic", "console-plain", "--partition", "0", "--offset", "0")
        run("kafka-console-consumer", *keyless, "--timeout-ms", "400")

    text = both_say(pair, script)
    assert "Offset:3" in text and "with tab" in text


def test_delete_records_and_log_dirs(pair: Pair, tmp_path: Path) -> None:
    for which in BOTH:
        side = Side(pair.bootstrap[which])
        side.create("shortened", 2)
        side.produce("shortened", batch(4), batch(3))
        side.close()
    present = [
        {"topic": "shortened", "partition": number, "offset": offset} for number, offset in ((0, 5), (1, -1))
    ]
    beyond = [{"topic": "shortened", "partition": 0, "offset": 99}]
    for name, partitions in (("present", present), ("beyond", beyond)):
        (tmp_path / name).write_text(json.dumps({"version": 1, "partitions": partitions}))

    def script(run: Run) -> None:
        for name in ("present", "beyond"):
            run("kafka-delete-records", "--offset-json-file", str(tmp_path / name))
        run("kafka-get-offsets", "--topic", "shortened", "--time", "earliest")
        text = run("kafka-log-dirs", "--describe", "--topic-list", "shortened")
        assert '"shortened-0"' in text

    both_say(pair, script)


def test_measuring_producers(pair: Pair) -> None:
    def script(run: Run) -> None:
        run("kafka-topics", "--create", "--topic", "measured", "--partitions", "1")
        amount = ("--num-records", "2000", "--record-size", "100", "--throughput", "-1")
        run(
            "kafka-producer-perf-test",
            "--topic",
            "measured",
            *amount,
            "--command-property",
            "bootstrap.servers=BOOTSTRAP",
        )
        output = run(
            "kafka-verifiable-producer", "--topic", "measured", "--max-messages", "20", "--acks", "-1"
        )
        assert output.count("producer_send_success") == 20
        run("kafka-get-offsets", "--topic", "measured")

    assert "measured:0:2020" in both_say(pair, script)


def test_kafka_dump_log(pair: Pair) -> None:
    """Our files of the same batches: the same dump of a closed segment, its indexes, and the next log."""
    dumps = {}
    flags = ("--deep-iteration", "--print-data-log"), ("--index-sanity-check",), ("--verify-index-only",)
    for which in BOTH:
        side = Side(pair.bootstrap[which])
        side.create("dumped", configs={"internal.segment.bytes": "16384"})
        filled = [batch(3, value=b"x" * 1500, time_ms=TIME_MS + 10 * number) for number in range(4)]
        side.produce("dumped", batch(5, codec=4), numbered(0, 2, producer_id=9_000_000), *filled)
        side.close()
        closed, active = (pair.log_dir[which] / "dumped-0" / f"{base:020}.log" for base in (0, 16))
        indexes = [closed.with_suffix(kind) for kind in (".index", ".timeindex")]
        files = ",".join(map(str, (closed, *indexes)))
        ran = [run_tool("kafka-dump-log", *flag, "--files", files) for flag in flags]
        ran.append(run_tool("kafka-dump-log", "--deep-iteration", "--files", str(active)))
        assert [dump.code for dump in ran] == [0, 0, 0, 0], ran
        dumps[which] = "\n".join(normal(pair, which, dump.out + dump.err) for dump in ran)
    assert dumps["ours"] == dumps["kafka"]
    assert "baseOffset: 0 " in dumps["ours"] and "baseOffset: 16 " in dumps["ours"]
    assert find_faults(dumps["ours"], 0, {}) == []
