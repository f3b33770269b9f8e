"""The local page with the model behind it: what it may be asked, the server, and the page itself."""
