# The environment of .venv and of ROS 2 on this computer only. Use it in bash: . tools/setup/env.sh
# `make` uses it for all its targets. What is set already is kept: ROS_DOMAIN_ID and the like.

_edge_vlm_venv=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.venv
if [[ ! -f "$_edge_vlm_venv/pyvenv.cfg" ]]; then
  echo "edge_vlm_ros: no $_edge_vlm_venv yet: run 'make setup' first" >&2
  unset _edge_vlm_venv
  return 1
fi

export VIRTUAL_ENV=$_edge_vlm_venv
export PATH=$VIRTUAL_ENV/bin:$PATH
export AMENT_PREFIX_PATH=$VIRTUAL_ENV CMAKE_PREFIX_PATH=$VIRTUAL_ENV
unset PYTHONPATH PYTHONHOME
LD_LIBRARY_PATH=$VIRTUAL_ENV/lib
for _edge_vlm_libs in "$VIRTUAL_ENV"/lib/python3.*/site-packages/ros_*.libs; do
  [[ -d $_edge_vlm_libs ]] && LD_LIBRARY_PATH+=:$_edge_vlm_libs
done
export LD_LIBRARY_PATH
# The ROS wheels would set LD_LIBRARY_PATH by executing Python a second time.
export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1

export RMW_IMPLEMENTATION=${RMW_IMPLEMENTATION:-rmw_fastrtps_cpp}
export ROS_AUTOMATIC_DISCOVERY_RANGE=${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}
# A domain of this shell's own, so that two runs on one computer do not meet. Above 101 the ports
# of DDS reach into those that Linux hands out to anybody.
export ROS_DOMAIN_ID=${ROS_DOMAIN_ID:-$((1 + $$ % 101))}
export ORT_DISABLE_TELEMETRY=1

unset _edge_vlm_venv _edge_vlm_libs
