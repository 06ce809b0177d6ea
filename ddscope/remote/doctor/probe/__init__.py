"""What the doctor runs in a server's own Python: standard library only, Python 3.8 or newer, reads and never writes.

The modules are sent as one script over standard input (`ddscope.remote.doctor.bundle`). They import each other and
nothing else of ddscope; everything they find goes back as one JSON object.
"""
