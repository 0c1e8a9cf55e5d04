"""What do the listeners and connections of all protocols share?"""
