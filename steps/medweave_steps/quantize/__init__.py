"""An int8 candidate of an exported model, calibrated on training cases; whether it is used, `gate` decides."""
