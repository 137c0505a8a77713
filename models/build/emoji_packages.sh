# Sourced by image-tokenizer.sh and emoji.sh: the packages that images.py reads.
pypi_tool resvg-py==0.5.0
npm_packages emoji-datasource-google@16.0.0 emoji-datasource-twitter@16.0.0 emojibase-data@17.0.0 \
  @iconify-json/circle-flags@1.2.11 @iconify-json/emojione@1.2.3 @iconify-json/flat-color-icons@1.2.3 \
  @iconify-json/fluent-emoji@1.2.7 @iconify-json/fluent-emoji-flat@1.2.6 @iconify-json/fxemoji@1.2.2 \
  @iconify-json/game-icons@1.2.4 @iconify-json/noto-v1@1.2.5 @iconify-json/streamline-emojis@1.2.4
