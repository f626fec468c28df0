"""The process that workers are forked from, and what it does in itself and in them.

It runs in the workers' interpreter, where ``agent`` may be the user's own package: what is in
this folder imports the standard library and its neighbours alone, and is found by its path.
"""
