"""Stands where the engine is, in the tests of the queue: what it does is in the model's path.

Each run leaves a line in `runs.txt` in its job's folder. A path is a word and numbers: `sleep:5`
works for 5 seconds and looks at the wish to cancel, `stubborn:5` does not look and ignores SIGTERM,
`deaf:5` does not look, `die:1` kills its
own process in its first attempt, `child` starts a process that outlives it and dies, `fail` and
`bug` raise.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from laco.errors import ModelError


def run(request, store, context):
    word, _, number = request.recipe.model.path.partition(":")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else store.folder
    if not (folder / "job.json").is_file():  # not in a process of its own
        folder = store.folder
    with (folder / "runs.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if word == "sleep":
        end = time.monotonic() + float(number)
        while time.monotonic() < end:
            context.step(1 - (end - time.monotonic()) / float(number), f"asleep for {number} s")
            time.sleep(0.02)
    elif word == "stubborn":
        context.step(0.5, "hears nothing")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(float(number))
    elif word == "deaf":
        context.step(0.5, "hears nothing")
        time.sleep(float(number))
    elif word == "die":
        print("last words", flush=True)
        if int(os.environ["LACO_ATTEMPT"]) <= int(number):
            os.kill(os.getpid(), signal.SIGKILL)
    elif word == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (folder / "child").write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "fail":
        raise ModelError("The model is of cheese; choose another.")
    elif word == "bug":
        raise ZeroDivisionError("one by none")
    elif word == "memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9e12 bytes")
    return {
        "answer": word,
        "cwd": str(Path.cwd()),
        "device": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "pid": os.getpid(),
        "torch": "torch" in sys.modules,
    }
