# CPU image: docker build -t adaptive-train --build-arg TORCH_INDEX_URL=URL . && docker run --rm adaptive-train run --steps 50
# URL is the index that PyTorch's page "Get started" shows for CPU. It saves 3 GB; without it, pip takes the CUDA build.
FROM python:3.12-slim
ARG TORCH_INDEX_URL
RUN test -z "$TORCH_INDEX_URL" || python -m pip install --no-cache-dir torch==2.13.0 --index-url "$TORCH_INDEX_URL"
COPY . /src
RUN python -m pip install --no-cache-dir -c /src/constraints.txt "/src[parquet,plot]"
RUN useradd --create-home train
USER train
WORKDIR /data
ENTRYPOINT ["adaptive-train"]
