"""One file for each third party; installed as `shapekit.integrations`."""
