"""Every command has bad input here: it ends in one line on standard error and with the documented exit code.

A command that is added without a case fails `test_no_command_is_without_a_case`.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moldau.cli import app as commands
from tests.cli.running import Command

CASES = """
2 serve --listen nonsense
2 serve --set nonsense
2 cluster start --nodes 0
2 cluster start --nodes nonsense
2 cluster start --base-port 99999 --data-dir SCRATCH/c
4 cluster status --data-dir SCRATCH/nowhere
1 cluster add --data-dir SCRATCH/nowhere
1 cluster remove 4 --data-dir SCRATCH/nowhere
2 cluster remove four
1 cluster restart --data-dir SCRATCH/nowhere
1 cluster heal --data-dir SCRATCH/nowhere
1 cluster stop --data-dir SCRATCH/nowhere
2 format --config SCRATCH/none
2 format --config SCRATCH/none --add-scram nonsense
2 topic create t --partitions 0
2 topic create t --partitions many
2 topic create t --partitions -5
1 topic create 'a b'
2 topic create t --replica-assignment x
2 topic create t -c nonsense
2 topic list --format '{nonsense}'
4 topic describe nowhere
4 topic alter nowhere -c retention.ms=1
2 topic alter there
4 topic add-partitions nowhere --to 2
2 topic add-partitions there
1 topic add-partitions there --to 1
4 topic delete nowhere
4 topic empty nowhere
2 topic empty there --before -7
4 topic offsets nowhere
2 topic offsets there --at nonsense
4 topic sizes nowhere
2 produce there --acks 7
4 produce there -p 9
2 produce there SCRATCH/none
2 produce there --value-as nonsense
2 produce there --timestamp nonsense
2 produce there --compression nonsense
4 consume nowhere
2 consume there --isolation nonsense
2 consume there --offset nonsense
2 consume there --where nonsense
2 consume there --since nonsense
2 consume there --format '{nonsense}'
4 consume there -p 9
2 registry list
2 registry list --registry nonsense
2 registry list --registry http://127.0.0.1:99999
3 registry list --registry http://127.0.0.1:1
3 registry versions s --registry http://127.0.0.1:1
2 registry show --registry http://127.0.0.1:1
2 registry show s --id 1 --registry http://127.0.0.1:1
2 registry show s --version 0 --registry http://127.0.0.1:1
2 registry references s --version x --registry http://127.0.0.1:1
2 registry register s SCRATCH/none.avsc --registry http://127.0.0.1:1
2 registry register s SCRATCH --registry http://127.0.0.1:1
2 registry check s SCRATCH/none.proto --registry http://127.0.0.1:1
2 registry check s SCRATCH/none.txt --registry http://127.0.0.1:1
2 registry level s --set nonsense --registry http://127.0.0.1:1
2 registry level --unset --registry http://127.0.0.1:1
2 registry mode s --set nonsense --registry http://127.0.0.1:1
2 registry delete s --version nonsense --registry http://127.0.0.1:1
2 group list --state Nonsense
4 group describe nobody
4 group lag nobody
4 group members nobody
2 group reset g
4 group reset-streams nobody
2 group reset-streams g -t there --to nonsense
2 group reset-streams g --to latest
4 group reset g -t nowhere --to earliest
2 group reset g -t there --to nonsense
4 group delete nobody
4 group delete-offsets nobody -t there
2 config list nonsense
2 config describe nonsense there
4 config describe topic nowhere
4 config describe broker 77
2 config set topic there nonsense
1 config set topic there retention.ms=soon
4 config unset topic nowhere retention.ms
2 broker list --format '{nonsense}'
4 broker disks 77
4 broker api-versions 77
2 broker features --format '{nonsense}'
1 broker set-feature nonsense 1
4 broker elect-leaders nowhere
2 broker elect-leaders there:x
2 broker elect-leaders there:0,,1
4 broker elect-leaders there:9
2 topic list -b [::1
2 topic list -b ::1]:9092
2 topic list -b []:9092
4 broker unregister 77
2 broker unregister x
2 quorum status --format '{nonsense}'
2 quorum replicas --watch 0
2 quorum add-voter 9 nonsense --listener C://127.0.0.1:1
2 quorum remove-voter 9 nonsense
4 reassign plan nowhere
2 reassign plan there --brokers x
2 reassign run SCRATCH/none
4 reassign drain 77
2 reassign status nonsense
2 reassign cancel
2 reassign cancel SCRATCH/none
4 reassign unthrottle nowhere
2 txn list --state Nonsense
4 txn describe nobody
4 txn producers nowhere
4 txn hanging nowhere
2 txn hanging --older-than -1
4 txn abort there -p 0 --start-offset 7
4 txn abort there -p 9 --start-offset 7
4 txn terminate nobody
2 top --every 0
4 bench produce nowhere -n 1
2 bench produce there -n 0
2 bench produce there --acks 7
4 bench consume nowhere
4 bench latency nowhere -n 1
2 bench latency there --size 0
2 health --wait -1
2 doctor --format '{nonsense}'
2 log dump SCRATCH/nowhere
2 log verify SCRATCH/nowhere
2 log recover SCRATCH/nowhere
2 lag --every 0
4 lag nobody
2 console --listen nonsense
2 console-user u --role nonsense
2 user add u --mechanism nonsense --password-stdin
2 user list nonsense
4 user remove nobody
2 token create --max-lifetime nonsense
5 token list
2 token renew nonsense --for nonsense
2 token expire nonsense --in nonsense
1 acl add --principal User:a --operation Read --topic t
2 acl add --principal User:a --operation Nonsense --topic t
1 acl list
2 acl remove
2 quota set
2 quota set --user u --fetch nonsense
2 quota list nonsense
2 quota remove
2 certs init --days 0 --dir SCRATCH/certs
1 certs init --dir /dev/null/certs
4 certs server n --dir SCRATCH/nowhere
4 certs client n --dir SCRATCH/nowhere
2 app run nonsense
4 app run no_such_module:app
2 app asyncapi nonsense
4 pipeline validate SCRATCH/none.toml
2 pipeline list --nonsense
4 pipeline show nonsense
4 pipeline explain SCRATCH/none.toml
4 pipeline status SCRATCH/none.toml
4 pipeline test SCRATCH/none.toml
4 pipeline run SCRATCH/none.toml
2 pipeline init SCRATCH/nowhere/p.toml --nonsense
4 pipeline replay SCRATCH/none.toml --from earliest --into SCRATCH/x
2 pipeline backfill SCRATCH/none.toml --from earliest
4 pipeline redrive SCRATCH/none.toml
2 pipeline keys nonsense
2 spark pack SCRATCH/x.tar.gz --nonsense
4 dlq list nowhere
4 dlq show nowhere 0:0
2 dlq redrive nowhere
4 dlq redrive nowhere --all
4 trace nothing
2 relay --http nonsense
2 relay --no-delays
2 context list --nonsense
4 context show nonsense
2 context set 'a/b' -b 127.0.0.1:1
4 context use nonsense
4 context delete nonsense
"""
LINES = [line for line in CASES.splitlines() if line]


def leaves() -> Iterator[str]:
    def walk(command: Any, path: str) -> Iterator[str]:
        below = getattr(command, "commands", None)
        if not below:
            yield path
            return
        for name, each in below.items():
            yield from walk(each, f"{path} {name}")

    for entries in commands.COMMANDS.values():
        for name, entry in entries.items():
            yield from walk(commands.load(name, entry), name)


def test_no_command_is_without_a_case() -> None:
    tried = [line.partition(" ")[2] for line in LINES]
    assert [leaf for leaf in leaves() if not any(each == leaf or each.startswith(f"{leaf} ") for each in tried)] == []


@pytest.fixture(scope="module")
def there(moldau: Command) -> Command:
    moldau.ok("topic", "create", "there")
    return moldau


@pytest.mark.parametrize("line", LINES)
def test_bad_input_is_told_in_a_line(there: Command, tmp_path: Path, line: str) -> None:
    code, _, words = line.partition(" ")
    ended = there(*shlex.split(words.replace("SCRATCH", str(tmp_path))))
    assert (int(ended.code), ended.err.count("\n")) == (int(code), 1), ended
    assert ended.err.startswith("moldau: ")
    assert "(--debug shows where)" not in ended.err, "nobody foresaw it"
    assert "[Errno" not in ended.err
