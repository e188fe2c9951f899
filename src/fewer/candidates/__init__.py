"""How `fewer.select` proposes panels, compares them on held-out rows and finishes the winner."""
