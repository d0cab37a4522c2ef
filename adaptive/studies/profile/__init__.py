"""Looking before training: who is looked up how often, where a step's time goes, how rows come to rest."""
