"""Citus clusters of a test's own: a coordinator and workers, each a server with mixedcc.

Citus is no part of this project, and nothing here builds it. It is found where PG_CONFIG, or the
server's own programs, have their libraries."""

import os
import pathlib
import subprocess

from lib import clusters
from lib.common import query, value, wait_until

# Both are preloaded; Citus insists on being first.
LIBRARIES = "citus,mixedcc"


def missing():
    """Why there is no Citus here, or nothing."""
    program = os.path.join(os.environ["PGBIN"], "pg_config")
    directory = subprocess.run([program, "--pkglibdir"], capture_output=True, text=True, check=True).stdout.strip()
    library = pathlib.Path(directory, "citus.so")
    return None if library.exists() else f"no installation of Citus: there is no {library}"


class CitusCluster:
    """The servers talk through sockets, as all servers of tests do."""

    def __init__(self, workers=2, **settings):
        self.nodes = []
        try:
            for number in range(workers + 1):
                self.nodes.append(self.server(**settings))
                self.nodes[-1].start()
            for node in self.nodes:
                node.ask("CREATE EXTENSION citus; CREATE EXTENSION mixedcc; SELECT 1")
                self.allow_splits(node)
            self.boss = self.coordinator.connect()
            query(self.boss, "SELECT citus_set_coordinator_host(%s, %s)", (self.coordinator.home, int(clusters.PORT)))
            for node in self.workers:
                self.add(node)
        except BaseException:
            self.remove()
            raise

    @staticmethod
    def allow_splits(node):
        """Newer minor versions must be told that Citus's library may decode changes."""
        session = node.connect()
        allowed = query(session, "SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries'")
        if allowed:
            session.autocommit = True
            query(session, f"ALTER SYSTEM SET output_plugin_libraries = {', '.join(filter(None, (allowed[0][0], 'citus')))}")
            query(session, "SELECT pg_reload_conf()")
        session.close()

    @staticmethod
    def server(**settings):
        node = clusters.Cluster.new()
        node.configure(**{"shared_preload_libraries": LIBRARIES, "wal_level": "logical",
                          "max_prepared_transactions": "50", "citus.local_hostname": node.home,
                          "citus.node_conninfo": "sslmode=disable", "citus.shard_count": "4",
                          "mixedcc.memory": "64MB", "citus.max_background_task_executors": "1", **settings})
        return node

    def add(self, node):
        query(self.boss, "SELECT citus_add_node(%s, %s)", (node.home, int(clusters.PORT)))

    @property
    def coordinator(self):
        return self.nodes[0]

    @property
    def workers(self):
        return self.nodes[1:]

    def everywhere(self, sql):
        """A statement's one value on each worker, by its directory."""
        found = query(self.boss, "SELECT nodename, success, result FROM run_command_on_workers(%s)", (sql,))
        bad = [line for line in found if not line[1]]
        if bad:
            raise RuntimeError(f"{sql}: {bad}")
        return {name: result for name, _, result in found}

    def home_of(self, table, tenant):
        """The worker and the shard of a tenant's rows."""
        shard = value(self.boss, "SELECT get_shard_id_for_distribution_column(%s, %s)", (table, tenant))
        name = value(self.boss, "SELECT nodename FROM citus_shards WHERE shardid = %s", (shard,))
        return next(node for node in self.nodes if node.home == name), f"{table}_{shard}"

    def remove(self):
        for node in self.nodes:
            node.remove()
