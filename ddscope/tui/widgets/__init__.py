"""One pane a file. A pane draws the value it is given; it knows no socket, no file and no other pane."""
