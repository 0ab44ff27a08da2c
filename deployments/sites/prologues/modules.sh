# Stands at the head of each job script at the site; $HOME is that of the account there.
module load python/3.11
. "$HOME/medweave/bin/activate"
