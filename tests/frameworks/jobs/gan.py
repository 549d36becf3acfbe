"""Two optimizers that take turns."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
for _ in range(5):
    real, noise = torch.randn(16, 8), torch.randn(16, 4)
    loss = critic(generator(noise).detach()).mean() - critic(real).mean()
    critic_optimizer.zero_grad()
    loss.backward()
    critic_optimizer.step()
    loss = -critic(generator(noise)).mean()
    generator_optimizer.zero_grad()
    loss.backward()
    generator_optimizer.step()
print(loss.item().hex())
