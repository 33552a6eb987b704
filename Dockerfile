# docker build --tag opct .
#     torch for CPUs
# docker build --tag opct --build-arg TORCH_INDEX=https://pypi.org/simple .
#     PyPI's torch, for NVIDIA GPUs (driver 580 or newer): docker run --gpus all
# docker run --rm opct demo
# docker run --rm --volume "$PWD":/work --volume opct-cache:/home/opct/.cache opct train mine.yaml
FROM python:3.13-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# The id of most people: what is written into /work is then theirs. Another: `docker run --user`.
RUN useradd --create-home --uid 1000 opct && install --directory --owner opct /work /home/opct/.cache
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore HOME=/home/opct

# The dependencies, some gigabytes, are a layer of their own, which a change of the source does not build again.
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt --extra-index-url $TORCH_INDEX
COPY README.md LICENSE NOTICE ./
COPY src src
# Extras, such as --build-arg EXTRAS=[judge]
ARG EXTRAS=""
RUN pip install -c constraints.txt ".$EXTRAS"

USER 1000
WORKDIR /work
ENTRYPOINT ["opct"]
CMD ["--help"]
