"""`paged-serve keygen`: a CURVE key pair in two files."""

import click


@click.command("keygen")
@click.argument("name")
@click.option("--folder", default=".", show_default=True, metavar="FOLDER", help="Where to write the two files.")
def command(name: str, folder: str) -> None:
    """Make NAME.key, which is public, and NAME.key_secret, which stays with its owner.

    The server takes its own secret file with --client-server-key and a folder of its clients' public files with
    --client-keys; a client takes its own secret file and the server's public one.
    """
    from paged_serve.protocol.transport.curve import make_keys

    public, secret = make_keys(folder, name)
    click.echo(f"{public}  (public)\n{secret}  (secret)")
