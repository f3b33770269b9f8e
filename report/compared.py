"""Rows to tables (being written)."""
def show_compared(lab, base, rows, failed, *, name=None, also=(), look=0):
    for row in rows:
        print(row.title, row.result.open_words, round(row.result.main.value,2), row.result.loss, row.run.path)
    for each in failed: print("failed", each)
