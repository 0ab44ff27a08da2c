"""`medweave-step train`: the segmentation network, from prepared cases to a model folder."""
