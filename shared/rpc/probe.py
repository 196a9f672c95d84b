"""For a container's health check: `python -m shared.rpc.probe 127.0.0.1:7401` exits with 0 when that server serves."""

import asyncio
import sys

from shared.rpc.health import is_serving


def main() -> int:
    return 0 if asyncio.run(is_serving(sys.argv[1], timeout_s=3.0)) else 1


if __name__ == "__main__":
    sys.exit(main())
