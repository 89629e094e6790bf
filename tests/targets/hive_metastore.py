"""A metastore of Hive on this machine, from the jars that Spark brings along."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_connection

import pyspark

from headwater.testing.servers.process import ServerProcess, free_port
from tests.shared import HANG_S

# The tables of locks are no part of the schema that Hive creates by itself.
METASTORE = """
public class Metastore {
    public static void main(String[] arguments) throws Throwable {
        var conf = new org.apache.hadoop.hive.conf.HiveConf();
        org.apache.hadoop.hive.metastore.txn.TxnDbUtil.prepDb(conf);
        org.apache.hadoop.hive.metastore.HiveMetaStore.main(arguments);
    }
}
"""
SETTINGS = {
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "datanucleus.connectionPoolingType": "none",
    "hive.metastore.schema.verification": "false",
    "hive.async.log.enabled": "false",
}


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Serve a metastore whose database is in a folder; yield its address."""
    folder.mkdir(parents=True)
    settings = {
        **SETTINGS,
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
        "hive.metastore.warehouse.dir": f"file://{folder}/warehouse",
    }
    listed = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{listed}</configuration>")
    source = folder / "Metastore.java"
    source.write_text(METASTORE)
    port, jars = free_port(), Path(pyspark.__file__).parent / "jars"
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", f"-Dderby.system.home={folder}"]
    options += [f"-Djava.io.tmpdir={folder}", "-cp", f"{folder}:{jars}/*"]
    command = ["java", *options, str(source), "-p", str(port)]
    server = ServerProcess(command, folder, dict(os.environ))
    try:
        deadline = time.monotonic() + HANG_S
        while True:
            with suppress(OSError), create_connection(("127.0.0.1", port), 1):
                break
            if not server.is_running or time.monotonic() > deadline:
                raise RuntimeError(server.output())
            time.sleep(0.1)
        yield f"thrift://127.0.0.1:{port}"
    finally:
        server.stop()
