"""moto's server with its S3 alone: ``python -m tests.support.objects.moto_s3 PORT``.

Its own looks through the folders of all services at each request, and writes a line of it: half of the time.
"""

import gc
import sys

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class _Quiet(MotoRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""


if __name__ == "__main__":
    application = create_backend_app("s3")
    gc.freeze()
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=_Quiet)
