#!/bin/bash
# sbatch slurm.sh: 8 machines with 8 GPUs each. The run folder, the data and this environment are on shared storage.
#SBATCH --job-name=quintet
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue

# Half an hour before the time limit (train.minutes) the run saves and stops; the last line requeues the job. The same
# command then resumes the run, as after a failure, because torchrun may restart it (--max-restarts).
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node 8 --max-restarts 3 \
    --rdzv_backend c10d --rdzv_endpoint "$first:29500" --rdzv_id "$SLURM_JOB_ID" \
    -m quintet train muse /data/photos --tokenizer /runs/tok --out /runs/muse --preset base \
    engine.world_size=64 engine.fsdp=true train.batch_size=512 train.steps=500000 train.minutes=1410

grep -q '"status": "stopped"' /runs/muse/state.json && scontrol requeue "$SLURM_JOB_ID"
