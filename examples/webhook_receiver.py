"""A webhook of final rows, and a receiver that checks the signature and takes each row once."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from headwater import duckdb_target, evm, portal_stream, webhook
from headwater.effects import verify_signature
from headwater.testing import simulated_portal

SECRET = "known to both"
taken = {}


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        verify_signature(SECRET, self.headers, body)  # raises, if it is not
        for message in json.loads(body)["messages"]:
            taken[message["key"]] = message["row"]  # a repetition changes nothing
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Receiver)
Thread(target=server.serve_forever, daemon=True).start()
with simulated_portal(seed=7, blocks=60, finality_depth=20) as portal:
    outputs = {"transfers": evm.events("erc20.Transfer", range=(0, 59))}
    stream = portal_stream(id="hook", portal=portal.url, outputs=outputs)
    address = f"http://127.0.0.1:{server.server_port}/transfers"
    hooked = stream.on_finalized("transfers", webhook(address, secret=SECRET))
    hooked.pipe_to(duckdb_target("hook.duckdb"))
    newest = max(row["block_number"] for row in taken.values())
    assert newest <= portal.chain.finalized.number
print(f"{len(taken)} rows were delivered, none of a block that can still be replaced")
server.shutdown()
server.server_close()
