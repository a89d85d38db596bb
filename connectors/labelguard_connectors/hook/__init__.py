"""The server that hears what annotation tools tell, and the worker that releases it.

A delivery is verified, understood by its connector, and on disk in the inbox before it is answered:
`app` over `committing`. What arrived is released by `worker`, in a process of its own.
"""
