"""The process of a flow run: Prefect's engine, which a deployment of `make up` names as its command.

Without a command Prefect's worker starts three programs one after the other, each of which imports Prefect: the first
prepares the folder of the code in the second, and then becomes the engine. The engine alone also takes a deployment's
pull steps. As without a command, the process has its own session: signals to the worker's group do not reach it.
"""

import os
import runpy

if __name__ == "__main__":
    os.setsid()
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
