#!/usr/bin/python3
"""pg_rewind with permanent tables: an old primary that went on by itself, with images and, after a
crash, with a journal, is rewound to the standby that was promoted, and follows it. All rows and
indexes are compared."""

from lib import churn
from lib.clusters import Cluster, run
from lib.common import check, equal, main, must_come, query

SAFE = {"options": "-c synchronous_commit=on"}


def make_pair():
    """A primary with permanent tables and its standby."""
    primary = Cluster.new("-k", wal_keep_size="1GB", wal_level="replica", max_wal_size="4GB", checkpoint_timeout="1h",
                          checkpoint_completion_target="0")
    primary.start()
    connection = primary.connect(**SAFE)
    query(connection, "CREATE EXTENSION mixedcc; CREATE EXTENSION amcheck")
    churn.make(connection)
    churn.change(connection, "first")
    standby = Cluster.copy("-R", source=primary)
    standby.start(primary_conninfo=f"host={primary.home} port=5432 user=postgres")
    return primary, standby, connection


def diverge(name, primary, standby, connection):
    """Both go on: the standby is promoted, and some of its tables stay unused."""
    churn.change(connection, f"{name} 2")
    query(connection, "CHECKPOINT")
    churn.change(connection, f"{name} 3", turns=15)
    query(connection, "UPDATE quiet SET v = v + 1 WHERE id % 5 = 0")
    wanted = churn.digests(connection)
    must_come(lambda: standby.replays(primary))
    standby.control("promote")
    must_come(standby.recovered)
    # The old primary writes blocks of all tables again, and what it writes is to go.
    for turn in range(4):
        query(connection, f"UPDATE keyed SET v = -1; UPDATE plain SET t = 'gone{turn}'; UPDATE long SET t = t || 'gone'")
        query(connection, "UPDATE quiet SET v = -1, t = 'gone'; DELETE FROM quiet WHERE id % 3 = 0")
        query(connection, "CHECKPOINT")
    churn.change(connection, f"{name} gone", turns=10)
    query(connection, "UPDATE quiet SET v = -2")
    connection.close()
    new = standby.connect(**SAFE)
    churn.change(new, f"{name} new", tables=("keyed", "plain", "long"), turns=20)
    return new, wanted


def checkpoint_of_promotion(standby):
    """The standby's own checkpoint after the promotion is complete."""
    return standby.ask("SELECT timeline_id FROM pg_control_checkpoint()") > 1


def rewind(name, crashes, checkpoint):
    primary, standby, connection = make_pair()
    try:
        new, wanted = diverge(name, primary, standby, connection)
        if checkpoint:
            query(new, "CHECKPOINT")
        must_come(lambda: checkpoint_of_promotion(standby), 120)
        # A journal of the old primary's own: redo has written it.
        if crashes:
            primary.crash()
        else:
            primary.control("stop", "-m", "fast")
        said = run("pg_rewind", "-D", primary.data, "--source-server", f"host={standby.home} port=5432 user=postgres dbname=postgres", "-R")
        check(f"{name}: the primary is rewound", "Done" in said, said)
        primary.start(primary_conninfo=f"host={standby.home} port=5432 user=postgres")
        churn.change(new, f"{name} after", tables=("keyed", "plain", "long"), turns=10)
        must_come(lambda: primary.replays(standby))
        compare(name, primary, new, wanted)
        new.close()
    finally:
        primary.remove()
        standby.remove()


def compare(name, rewound, new, wanted):
    rewound.control("promote")
    must_come(rewound.recovered)
    connection = rewound.connect(**SAFE)
    got = churn.digests(connection)
    equal(f"{name}: the rows are those of the new primary", got, churn.digests(new))
    equal(f"{name}: an unused table is as it was when the standby was promoted", got["quiet"], wanted["quiet"])
    equal(f"{name}: indexes agree with the rows", churn.problems(connection), [])
    churn.change(connection, f"{name} end", turns=10)
    wanted = churn.digests(connection)
    connection.close()
    rewound.control("restart", "-m", "immediate")
    connection = rewound.connect(**SAFE)
    equal(f"{name}: it can be written, and crash", churn.digests(connection), wanted)
    connection.close()


def after_a_clean_stop():
    rewind("a clean stop", crashes=False, checkpoint=True)


def after_a_crash():
    rewind("a crash", crashes=True, checkpoint=True)


def without_a_checkpoint():
    """Nothing but the checkpoint that each promotion asks for."""
    rewind("no CHECKPOINT on the source", crashes=True, checkpoint=False)


if __name__ == "__main__":
    main(after_a_clean_stop, after_a_crash, without_a_checkpoint)
