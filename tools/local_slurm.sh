#!/usr/bin/env bash
# A Slurm of two nodes on this machine, in a directory of its own, to try the batch scripts of slurm/ on.
#
#   tools/local_slurm.sh up DIR      start it; prints the line that lets sbatch, squeue, ... find it
#   tools/local_slurm.sh down DIR    end its jobs and what `up` started, and nothing else
#
# Needs Debian's packages slurm-wlm and munge, and root (slurmd starts steps as the user that submits). Everything it
# writes lies under DIR: key, sockets, logs, pids. Both "nodes" are this one host, so they share its memory and /tmp.
# LOCAL_SLURM_CPUS: CPUs of each node (4): no more than a number that Slurm gives out, the cores stay shared.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin  # where Debian has the daemons; not everybody's PATH does

NODES=(node1 node2)

die() { printf 'local_slurm: %s\n' "$*" >&2; exit 1; }

need() {
    local tool
    for tool in munged mungekey slurmctld slurmd sinfo scontrol; do
        command -v "$tool" >/dev/null || die "no $tool on PATH; apt-get install slurm-wlm munge"
    done
    [ "$(id -u)" = 0 ] || die "needs root"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The first of three consecutive ports that nobody listens on.
free_ports() {
    local base
    for ((base = 17000; base < 20000; base += 10)); do
        listens "$base" || listens $((base + 1)) || listens $((base + 2)) || { echo "$base"; return; }
    done
    die "no free ports between 17000 and 20000"
}

write_conf() {
    local port=$1 cpus=${LOCAL_SLURM_CPUS:-4}
    cat >"$DIR/slurm.conf" <<CONF
ClusterName=local
SlurmctldHost=localhost
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
# Slurm starts a requeued job only once the credentials of its last run have expired: 120 s by default.
AuthInfo=socket=$DIR/munge.socket,cred_expire=5
StateSaveLocation=$DIR/state
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdPidFile=$DIR/slurmd-%n.pid
SlurmdLogFile=$DIR/slurmd-%n.log
SlurmdSpoolDir=$DIR/spool-%n
# Nodes with more CPUs than this host has.
SlurmdParameters=config_overrides
# Signals reach a step's process groups; a cgroup would need a host of our own.
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
ReturnToService=2
KillWait=10
NodeName=${NODES[0]} NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=$cpus
NodeName=${NODES[1]} NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=$cpus
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
CONF
}

idle_nodes() { sinfo --noheader --Node --format=%T 2>/dev/null | grep -c '^idle$' || true; }

up() {
    need
    [ ! -e "$DIR/slurm.conf" ] || die "$DIR has one already; take it down first"
    mkdir -p "$DIR/state" "$DIR/spool-${NODES[0]}" "$DIR/spool-${NODES[1]}"
    chmod a+x "$DIR"  # munged refuses a socket that others cannot reach
    write_conf "$(free_ports)"
    mungekey --create --keyfile="$DIR/munge.key" --bits=1024
    munged --key-file="$DIR/munge.key" --socket="$DIR/munge.socket" --pid-file="$DIR/munged.pid" \
        --log-file="$DIR/munged.log" --seed-file="$DIR/munged.seed" --num-threads=2
    export SLURM_CONF=$DIR/slurm.conf
    slurmctld
    for node in "${NODES[@]}"; do slurmd -N "$node"; done
    for _ in {1..60}; do
        if [ "$(idle_nodes)" = ${#NODES[@]} ]; then
            printf 'export SLURM_CONF=%q\n' "$SLURM_CONF"
            return
        fi
        sleep 0.5
    done
    tail -n 5 "$DIR"/*.log >&2
    die "the nodes are not idle after 30 s"
}

# End the process of a pid file, if it is still the program that wrote it.
end() {
    local program=$1 file=$2 pid
    [ -s "$file" ] || return 0
    pid=$(cat "$file")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$program" ] || return 0
    kill "$pid"
    for _ in {1..50}; do
        [ -e "/proc/$pid" ] || return 0
        sleep 0.1
    done
    kill -KILL "$pid"
}

down() {
    [ -e "$DIR/slurm.conf" ] || die "there is none in $DIR"
    export SLURM_CONF=$DIR/slurm.conf
    squeue --noheader --format=%A 2>/dev/null | sort -u | xargs --no-run-if-empty scancel 2>/dev/null || true
    for _ in {1..40}; do
        [ -n "$(squeue --noheader 2>/dev/null)" ] || break
        sleep 0.5
    done
    for node in "${NODES[@]}"; do end slurmd "$DIR/slurmd-$node.pid"; done
    end slurmctld "$DIR/slurmctld.pid"
    end munged "$DIR/munged.pid"
    rm "$DIR/slurm.conf"
}

[ $# = 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
DIR=$(realpath -m "$2")
case $1 in
up) up ;;
down) down ;;
*) die "up or down, not $1" ;;
esac
