"""The machine's C++ compiler, if there is one: an installation finds the same."""

import os
import shutil

COMPILER = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
