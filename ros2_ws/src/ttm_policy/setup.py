"""Builds the ROS 2 package with colcon.

Without ROS, the pip package of the repository installs the same modules.
"""

from glob import glob

from setuptools import find_packages, setup

NAME = "ttm_policy"

setup(
    name=NAME,
    version="0.1.0",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={NAME: ["*.yaml"], f"{NAME}.web": ["page/*"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        (f"share/{NAME}/config", glob("config/*.yaml")),
        (f"share/{NAME}/launch", glob("launch/*.launch.py")),
    ],
    install_requires=["setuptools"],
    extras_require={"test": ["pytest"]},  # by which `colcon test` chooses pytest
    zip_safe=False,
    maintainer="ttm-policy-stack maintainers",
    maintainer_email="maintainers@ttm-policy-stack.invalid",
    description="Token Turing Machine policies in closed loop",
    license="Apache-2.0",
    entry_points={
        "console_scripts": [
            f"{node} = {NAME}.__main__:{node}"
            for node in ("policy_node", "recorder_node", "sim_node", "teleop_node", "web_node")
        ],
    },
)
