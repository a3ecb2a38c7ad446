"""When a command's first output is there, and when the command has ended, in seconds, eight times.

    python3 tests/benches/first_output.py COMMAND ARGUMENT..
"""

import os
import subprocess
import sys
import time

if len(sys.argv) < 2:
    sys.exit(__doc__)
for _ in range(8):
    start = time.monotonic()
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE) as process:
        os.read(process.stdout.fileno(), 1)
        first = time.monotonic() - start
        process.stdout.read()
    print(f"first output after {first:.3f} s, ended after {time.monotonic() - start:.3f} s")
    if process.returncode != 0:
        sys.exit(f"it failed: exit status {process.returncode}")
