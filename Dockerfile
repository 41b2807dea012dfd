# Two images. `robot` has what `ros2 launch ttm_policy robot.launch.py` needs; the last one also runs `make`.
#
#   docker build -t ttm . && docker run --rm -it ttm make test
#   docker run --rm -it --net host --ipc host ttm ros2 launch ttm_policy robot.launch.py sim:=true task:=pick
#
# Only `ros2` sees ROS: `make` installs an rclpy of its own, and the two do not mix.
FROM ros:jazzy-ros-base AS robot
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends libegl1 libgl1-mesa-dri make python3-venv ros-jazzy-bond \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /ttm
COPY . .
ENV VIRTUAL_ENV=/opt/ttm MUJOCO_GL=egl PIP_NO_CACHE_DIR=1
RUN python3 -m venv --system-site-packages $VIRTUAL_ENV \
 && $VIRTUAL_ENV/bin/pip install -q -c constraints.txt '.[kitchen,web]' colcon-common-extensions
SHELL ["/bin/bash", "-c"]
RUN source /opt/ros/jazzy/setup.bash && source $VIRTUAL_ENV/bin/activate && cd ros2_ws \
 && python3 -m colcon build --build-base /tmp/build --install-base $VIRTUAL_ENV/ros2 \
 && rm -rf /tmp/build log
RUN printf '%s\n' '#!/bin/bash' "source $VIRTUAL_ENV/bin/activate" 'source /opt/ros/jazzy/setup.bash' \
      "source $VIRTUAL_ENV/ros2/setup.bash" 'exec /opt/ros/jazzy/bin/ros2 "$@"' >/usr/local/bin/ros2 \
 && chmod +x /usr/local/bin/ros2
ENTRYPOINT []
CMD ["bash"]

FROM robot
RUN make install egl
