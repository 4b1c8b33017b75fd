"""On the import path of every process of a server: a call that would turn data into code ends the process.

These are pickles in any form, and eval and exec, except for imports, declarations, and templates in processes that may
render them. Files in $TRIPWIRE are the traces; `armed-PID` shows that a process was watched.
"""

import os
import pickle
import sys
import traceback

FOLDER = os.environ["TRIPWIRE"]
IMPORTS = ("<frozen importlib",)
STARTS = ("<frozen runpy", "/pkgutil.py")
# Modules that make code from declarations in our sources and libraries, never from received data
DECLARATIONS = (
    "/dataclasses.py",
    "/collections/__init__.py",
    "/typing.py",
    "/enum.py",
    "/torch/",
    "/numpy/",
    "/inspect.py",
)
TEMPLATES = ("/jinja2/",)


def trip(what):
    with open(os.path.join(FOLDER, f"tripped-{os.getpid()}"), "a") as file:
        file.write(f"{what}\n" + "".join(traceback.format_stack()))
    os.abort()


def forbid(name):
    def forbidden(*arguments, **options):
        trip(name)

    return forbidden


class Unpickler(pickle.Unpickler):
    """Libraries derive from it when they are imported; that alone is harmless."""

    def load(self):
        trip("pickle.Unpickler.load")


pickle.Unpickler = pickle._Unpickler = Unpickler
pickle.loads, pickle.load = forbid("pickle.loads"), forbid("pickle.load")


def allowed_by(frames, places):
    return any(place in filename for filename in frames for place in places)


def watch(event, arguments):
    if event == "pickle.find_class":
        trip(event)
    if event not in ("exec", "marshal.loads", "marshal.load"):
        return
    frames, frame = [], sys._getframe().f_back
    while frame is not None:
        frames.append(frame.f_code.co_filename)
        frame = frame.f_back
    asking = frames[:2]  # the frame that runs code, not the one that imported it
    if not frames or allowed_by(frames, IMPORTS) or allowed_by(asking, (*STARTS, *DECLARATIONS)):
        return
    if allowed_by(frames, ("/template_process.py", "/chat_template.py")) and allowed_by(asking, TEMPLATES):
        return
    trip(f"{event} {arguments!r:.300}")


sys.addaudithook(watch)
open(os.path.join(FOLDER, f"armed-{os.getpid()}"), "w").close()
