"""Where does a batch run, and how is it handed over?"""
