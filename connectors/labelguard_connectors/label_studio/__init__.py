"""Label Studio, the Community edition and those with the same interface."""

from labelguard_connectors.label_studio.connector import LabelStudio as LabelStudio
