// What comes from jobs is only ever written as text, never as HTML.
const jobs = document.getElementById("jobs")
const notice = document.getElementById("notice")

function row(id) {
  const known = document.getElementById(id)
  if (known) return known
  const made = document.createElement("tr")
  made.id = id
  for (const name of ["kind", "tags", "state", "progress", "attempts", "actions"]) {
    const cell = document.createElement("td")
    cell.className = name
    made.append(cell)
  }
  const bar = document.createElement("progress")
  made.querySelector(".progress").append(bar, document.createElement("span"))
  const recover = document.createElement("button")
  recover.textContent = "Recover"
  recover.onclick = () => act(`dibs/jobs/${id}/recover`)
  made.querySelector(".actions").append(recover)
  jobs.prepend(made)
  return made
}

function show(job) {
  const shown = row(job.id)
  shown.dataset.state = job.state
  for (const name of ["kind", "state", "attempts"]) shown.querySelector(`.${name}`).textContent = job[name]
  shown.querySelector(".tags").textContent = job.tags.join(" ")
  shown.querySelector("progress").value = job.progress
  shown.querySelector("span").textContent = job.message ?? ""
  shown.querySelector("button").hidden = job.state !== "running"
  if (job.state === "succeeded") showTotals()
}

// After the connection was lost: what is no longer live has ended, or is gone.
async function look(id) {
  const answer = await fetch(`dibs/jobs/${id}`)
  if (answer.ok) show(await answer.json())
  else if (answer.status === 404) document.getElementById(id)?.remove()
}

async function act(url, body) {
  const answer = await fetch(url, { method: "POST", body })
  const said = await answer.json()
  notice.textContent = answer.ok ? "" : String(said.detail)
  return answer.ok
}

async function showTotals() {
  const found = await (await fetch("totals")).json()
  document.getElementById("totals").replaceChildren(...found.map(each => {
    const item = document.createElement("li")
    item.textContent = `${each.module} ${each.year}: ${each.total}`
    return item
  }))
}

document.getElementById("upload").onsubmit = async event => {
  event.preventDefault()
  if (await act("uploads", new FormData(event.target))) event.target.file.value = ""
}

document.getElementById("who").onsubmit = event => {
  event.preventDefault()
  const name = event.target.name.value
  document.cookie = `operator=${name}; SameSite=Strict; path=/`
  notice.textContent = name ? `Hello, ${name}: you may act now.` : ""
}

const events = new EventSource("dibs/events?queue=imports")
events.addEventListener("snapshot", event => {
  const live = JSON.parse(event.data).jobs
  const missed = [...jobs.children].filter(shown => !live.some(job => job.id === shown.id))
  live.forEach(show)
  missed.forEach(shown => look(shown.id))
})
events.addEventListener("change", event => show(JSON.parse(event.data)))
events.addEventListener("gone", event => document.getElementById(JSON.parse(event.data).id)?.remove())
showTotals()
