"""Lightning's Trainer with automatic optimisation, clipping and validation."""

import logging
import warnings

import lightning
import torch
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.manual_seed(0)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch, _):
        x, y = batch
        self.last = nn.functional.cross_entropy(self.net(x), y)
        return self.last

    def validation_step(self, batch, _):
        self.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


data = torch.utils.data.TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = Model()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    gradient_clip_val=0.1,
)
trainer.fit(model, loader, loader)
print(model.last.item().hex())
