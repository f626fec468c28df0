"""What would differ between a fork of a template and a new process, and what is done about it.

Like the rest of the template, this folder imports the standard library and its neighbours alone.
"""
