# dynabro on a CPU:  docker build --tag dynabro . && docker run --rm --volume "$PWD:/results" dynabro sweep digits-periodic
# The results are in the folder that is mounted at /results. Without a command, the container runs the demo.
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist

FROM python:3.12-slim
# dynabro compiles its kernels where it runs
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /dist /dist
# options for pip, such as the index of torch's wheels for CPUs, which are smaller
ARG PIP_OPTIONS=""
RUN pip install --no-cache-dir ${PIP_OPTIONS} /dist/*.whl
ENV XDG_CACHE_HOME=/results/.cache
WORKDIR /results
ENTRYPOINT ["dynabro"]
CMD ["demo"]
