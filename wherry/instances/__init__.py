"""Where does a batch run, and who hands it over?"""
