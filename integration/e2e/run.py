"""run.py BATCH [PART]: run a batch of end-to-end cases, all of them or those with PART in their name."""
import importlib
import sys

import harness

batch = importlib.import_module(sys.argv[1])
sys.exit(harness.run_batch(batch.prepare, batch.CASES, sys.argv[2] if len(sys.argv) > 2 else ""))
