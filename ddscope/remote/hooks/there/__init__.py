"""What runs on a host to change an environment and to prove that a change was undone: standard library only.

Every change is written into a journal on the host before it is made and after. Sent over standard input.
"""
