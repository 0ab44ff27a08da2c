"""`medweave-step train-distributed`: rounds in which replicas of a model are trained apart and then averaged."""
