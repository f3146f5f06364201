"""`shapekit demo`."""
