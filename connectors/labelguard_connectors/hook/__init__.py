"""The server that receives answers from annotation tools, and the worker that releases them.

A delivery is verified, understood by its connector, and on disk in the inbox before it is answered:
`app` over `delivery`. What arrived is released by `worker`, in a process of its own.
"""
